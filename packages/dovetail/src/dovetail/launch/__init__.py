"""Running coding agents on what Dovetail serves: what each has to be told, and how it is run."""
