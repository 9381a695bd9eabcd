"""Recipe: port Whisper, and compare what it writes with torch's."""
