"""Values that code decides by: of inputs, and computed."""
