"""Readers of other tools' files: the `nats` CLI's JSON, NACK's custom resources, Terraform.

`read_files` finds the files, `workspace_file` writes the result. Asks no server.
"""
