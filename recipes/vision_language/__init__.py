"""Recipe: port a vision-language model, and compare its answers with torch's."""
