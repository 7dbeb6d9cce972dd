"""HTTP: routes bind, the pipeline decides, the store writes."""
