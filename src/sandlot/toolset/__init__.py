"""Tools that models call: their schemas, a protocol of the sandbox that they work in, and output in the form that a model reads."""
