"""Terraform's jetstream provider: HCL, `terraform show -json`, and state."""
