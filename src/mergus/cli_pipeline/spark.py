"""`mergus spark`."""

import click

from mergus.cli_pipeline.options import address, of_a_catalog, pairs


@click.command()
@click.option("--sql", help="Run this and print its rows, instead of opening a shell.")
@click.option("--settings", "only_settings", is_flag=True, help="Print what spark-defaults.conf needs (no secrets).")
@click.option("--spark-version", help="Of Spark, for which --settings are.  [the one that is installed]")
@click.option("--master", help="Spark's.  [local[*]]")
@click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark's.")
@of_a_catalog
def spark(
    sql: str | None,
    only_settings: bool,
    spark_version: str | None,
    master: str | None,
    conf: tuple[str, ...],
    **given: str | None,
) -> None:
    """Spark on the catalog, ready configured: a shell, one statement, or the settings.

    Tables are lake.NAMESPACE.TABLE. Keys come from AWS_* variables if there are any, else the server vends them.
    """
    from mergus.pipeline import session, versions

    where = address(**given)
    if only_settings:
        shown = session.settings(where, spark=spark_version or versions.installed(), with_secrets=False)
        for key, value in {**shown, **pairs(conf)}.items():
            click.echo(f"{key} {value}")
        return
    active = session.spark_session(where, master=master, app="mergus", conf=pairs(conf))
    if sql is not None:
        with session.as_setup_errors():
            session.query(active, sql).show(1000, truncate=False)
        return
    import code

    code.interact(banner=f"Spark {active.version} as `spark`; tables are lake.NAMESPACE.TABLE", local={"spark": active})
