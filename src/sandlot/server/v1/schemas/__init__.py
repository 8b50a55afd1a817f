"""What the native API takes and gives, as pydantic models, one module for each kind of thing."""
