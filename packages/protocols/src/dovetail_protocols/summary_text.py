"""The instruction for a summary of a history, and the text before a summary."""

SUMMARY_INSTRUCTION = (
    "The conversation is about to be cut to save space. Write a summary from which the work can go"
    " on without it: what the user wants, what has been decided and why, what has been done, with"
    " the names of files, commands and values that matter, what is left to do, and what comes next."
    " Give the summary alone, and call no tools."
)
SUMMARY_PREFACE = "Summary of the conversation so far:\n\n"
