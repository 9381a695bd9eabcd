"""Recipe: port Qwen-Image, and compare its pictures with torch's."""
