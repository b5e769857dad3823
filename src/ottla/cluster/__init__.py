"""The metadata of the cluster: its image, and the controller that decides how it changes."""
