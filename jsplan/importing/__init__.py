"""The parts of an import: addresses, the selection of live objects, and the generated file."""
