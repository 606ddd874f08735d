"""The proof that a run survives: the digits job, struck at random moments, ends as if it were not.

    python -m tests.faults --rounds 200 --seed 7          # make soak N=200 SEED=7
    python -m tests.faults --rounds 200 --seed 7 --only 12

A *round* is a fresh run of one *variant* of the job in a database of its own, and one to three
*faults*, each a *kind* at a *moment*; seed and number of a round decide them (`plan`). The command
is typed again until it exits with 0. Then the *judge* compares what is stored with a *reference*,
the same variant left alone, and counts the records, files and processes that are left.

    variants, kinds, moments    what is tried: data and small functions
    plan                        which of it in which round
    bench                       database, proxy, home and command of a round
    rounds                      carries one out, in a process of its own
    results, books, judge       what must be so afterwards
    tally                       the sums over all rounds
"""
