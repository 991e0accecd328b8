"""What `import` takes: addresses, the selection of live objects, and the generated file."""
