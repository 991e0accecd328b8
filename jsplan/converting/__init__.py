"""Readers of other tools' files: the `nats` CLI's JSON, NACK's custom resources, Terraform.

Pure: documents in, resources and notes out.
"""
