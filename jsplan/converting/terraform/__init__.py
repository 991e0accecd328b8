"""Terraform's jetstream provider: HCL, `terraform show -json`, and state. What its resources mean is in `resources`."""
