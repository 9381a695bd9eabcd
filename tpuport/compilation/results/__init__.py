"""What a program gives and changes, put where the caller has it."""
