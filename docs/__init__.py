"""The pages, and the script that draws their pictures of schemes."""
