"""A mutation tester: small changes to the code of the verdict, each of which some test must notice."""
