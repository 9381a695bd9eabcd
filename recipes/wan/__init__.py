"""Recipe: port Wan, a video model with two transformers, and compare its clips with torch's."""
