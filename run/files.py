"""Files that are written whole or not at all."""


def write_atomically(path, content):
    """Writes all of content, text or bytes, or leaves the file that was there. Makes the folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.replace(path)
