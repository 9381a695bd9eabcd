"""What is known of the classes and models of the libraries, read without torch."""
