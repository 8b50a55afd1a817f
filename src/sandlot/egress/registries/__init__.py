"""One module for each registry, which says what a path of it is made of; beside it what that takes to read and write."""
