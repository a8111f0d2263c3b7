"""The boundary to transformers: loading, attention layouts, routing and the certificate."""
