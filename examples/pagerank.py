"""PageRank of a graph over several processes.

    skyphos run -n 4 examples/pagerank.py
    skyphos run -n 4 examples/pagerank.py path/to/edges.txt

Each rank reads its share of the file and gets its share of the edges; each iteration adds up the ranks'
values of each vertex in one sparse allreduce. The algorithm is in `skyphos.graph.pagerank`.
"""

import sys
from pathlib import Path

import skyphos as sky
from skyphos.graph import load, pagerank

DEMO = Path(__file__).parent.parent / "data" / "cit-HepTh.txt.gz"

with sky.init() as comm:
    edges = load(comm, sys.argv[1] if len(sys.argv) > 1 else DEMO)
    result = pagerank(comm, edges, tol=1e-10, max_iterations=200)

    # Every rank has the vertices that its edges touch. Each vertex has one owner, so the sum is over owned vertices.
    mine = result.ranks[result.owned]
    print(f"rank {comm.rank} owns {len(mine)} of {result.count} vertices, {mine.sum():.3f} of the mass")

    # Combine one number of each rank: a reduce of index 0.
    best = comm.configure_reduce([0], [0], [mine.max(initial=0.0)], n=1, op="max")[0]
    for vertex in result.vertices[result.owned & (result.ranks == best)]:
        print(f"the best vertex is {vertex} with {best:.6f}, after {result.iterations} iterations")
