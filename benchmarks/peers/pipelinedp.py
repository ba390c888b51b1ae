"""The flights batch with PipelineDP's local backend. Run by benchmarks/sql_peers.py in an environment of its own."""

import itertools

import job
import pandas as pd
import pipeline_dp


def answer(rows, query, share, domains):
    """One query, at its share of epsilon."""
    accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=share, total_delta=0)
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
    metric = pipeline_dp.Metrics.SUM if query["sum"] else pipeline_dp.Metrics.COUNT
    bounds = {"min_value": 0, "max_value": 5000} if query["sum"] else {}
    parameters = pipeline_dp.AggregateParams(
        noise_kind=pipeline_dp.NoiseKind.LAPLACE,
        metrics=[metric],
        max_partitions_contributed=1,
        max_contributions_per_partition=1,
        **bounds,
    )
    keys = query["keys"]
    low, high = query["range"] or (0, 1439)

    def partition(row):
        return tuple(getattr(row, key) for key in keys) if low <= row.minute <= high else ("outside",)

    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: row.Index,
        partition_extractor=partition,
        value_extractor=lambda row: row.distance,
    )
    groups = list(itertools.product(*(domains[key] for key in keys)))
    result = engine.aggregate(rows, parameters, extractors, public_partitions=groups)
    accountant.compute_budgets()
    return [(list(group), float(metrics[0])) for group, metrics in result]


def main(task):
    """Answers and seconds."""
    table = pd.read_parquet(task["path"], columns=["month", "minute", "origin", "carrier", "distance"])
    rows = list(table.itertuples(name="Row"))
    share = task["epsilon"] / len(task["queries"])
    for _ in range(task["releases"]):
        with job.clock() as clock:
            found = [answer(rows, query, share, task["domains"]) for query in task["queries"]]
        yield clock.seconds, found


job.serve(main, "pipeline-dp")
