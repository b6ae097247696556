"""What `headrace init` puts into a new folder: files that run as they are and are meant to be changed."""
