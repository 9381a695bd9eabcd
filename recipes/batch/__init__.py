"""Recipe: generate for a file of prompts in several processes, and continue after a kill."""
