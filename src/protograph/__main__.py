"""python -m protograph"""

from protograph.cli import app

app(prog_name="protograph")
