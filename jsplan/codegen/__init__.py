"""Writes configurations as the text of a workspace file, as a person would write them."""

from __future__ import annotations

from jsplan.codegen.document import generate_document
from jsplan.codegen.model import CodegenContext, GeneratedFile, ResourceToWrite, bucket_resource

__all__ = [
    "CodegenContext",
    "GeneratedFile",
    "ResourceToWrite",
    "bucket_resource",
    "generate_document",
]
