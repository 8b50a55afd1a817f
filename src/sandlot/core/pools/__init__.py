"""Sandboxes that are made before anybody asks: template snapshots, hot pools and blank pools."""
