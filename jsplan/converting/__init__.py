"""Reads what other tools keep and hands on resources with notes: the `nats` CLI's JSON, NACK's custom resources, Terraform.

Pure: documents in, resources out. Finding the files is left to `workflows.converting`, writing the new one to `generating`.
"""
