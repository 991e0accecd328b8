"""Readers of other tools' files: JSON of the `nats` CLI and of Terraform, NACK's resources.

`read_files` finds the files, `workspace_file` writes the result. Asks no server.
"""
