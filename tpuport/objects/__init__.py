"""Values of any class that cross a compiled call, and what code reads of them."""
