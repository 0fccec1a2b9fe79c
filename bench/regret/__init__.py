"""How close `auto` comes to the best fixed choice, over densities, sizes, ranks and networks."""
