"""Plans: what a task is, and what makes a list of them fit together; pure, without files, processes or clocks."""
