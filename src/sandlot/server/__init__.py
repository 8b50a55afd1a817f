"""The service over HTTP, and the composition root: the only place that names concrete drivers and stores."""
