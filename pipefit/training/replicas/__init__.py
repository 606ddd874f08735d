"""The devices of a model, and what makes several give the numbers of one."""
