"""The arguments of a call: what each of them is for its program."""
