"""Facts on torch, CUDA, images, drivers and GPUs: rows of data with their sources, read when they are needed.

`load_facts` gives the rows; `facts.torch` chooses a torch build and checks which packages of the torch family fit
together, `facts.gpu` says which GPU runs which code.
"""

from envspec.facts.tables import Facts as Facts
from envspec.facts.tables import load_facts as load_facts
