"""Web statistics of any number of sites, live from their access logs: formats, views, command, dashboard."""
