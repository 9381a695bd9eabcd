"""Recipe: port Flux, and compare its pictures with torch's."""
