"""The operations of a catalog, each one function: resolve → authorise → do → answer."""
