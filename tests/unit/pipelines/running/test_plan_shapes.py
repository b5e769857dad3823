"""What a checkpoint depends on, read from plans as Spark 4.3 prints them."""

from __future__ import annotations

from ottla.pipelines.running.plan_shapes import Shape, shape_of


def explained(tree: str, schema: str = "a: string") -> str:
    return (
        "== Parsed Logical Plan ==\n'Project [*]\n+- ~Aggregate [never], [this]\n\n"
        f"== Analyzed Logical Plan ==\n{schema}\n{tree.strip()}\n\n"
        "== Optimized Logical Plan ==\n~Aggregate [nor], [this]\n\n== Physical Plan ==\nScan"
    )


def shape(tree: str) -> Shape:
    return shape_of(explained(tree), views={"totals", "joined"}, sink="out")


def source(name: str, indent: str, first: int = 0) -> str:
    return f"""{indent}+- ~SubqueryAlias {name}
{indent}   +- View (`{name}`, [id#{first}, at#{first + 1}-T120000ms])
{indent}      +- ~EventTimeWatermark 30bdd693-3642-4487-bca9-4080ca4c2ab0, at#{first + 1}: timestamp, 2 minutes
{indent}         +- ~CollectMetrics source:{name}, [count(1) AS rows#{first + 2}L], 1
{indent}            +- ~StreamingRelationV2 PythonDataSourceV2@1a81{first:04}, ottla, [subscribe={name}], [key#{first + 3}]"""  # noqa: E501


CONVERSION = "precisetimestampconversion(at#12-T120000ms, TimestampType, LongType)"


def totals(width_us: int = 60_000_000, keys: str = "shop#10, region#31", first: int = 0) -> str:
    return f"""
~CollectMetrics out, [count(1) AS rows#40L], 14
+- ~SubqueryAlias totals
   +- View (`totals`, [minute#32, shop#10, region#31, total#33])
      +- ~Filter (total#33 > cast(cast(3 as decimal(1,0)) as decimal(20,2)))
         +- ~Aggregate [window#37-T120000ms, {keys}], [window#37-T120000ms.start AS minute#32, {keys}, sum(amount#11) AS total#33, round(avg(amount#11), 2) AS weird name, x#34]
            +- ~Project [named_struct(start, ({CONVERSION} - 0) % {width_us}), end, ({CONVERSION} + {width_us})) AS window#37-T120000ms, id#9]
               +- ~Join Inner, (shop#10 = shop#30)
                  :- ~SubqueryAlias o
{source("orders", "                  :  ", first)}
                  +- SubqueryAlias s
                     +- View (`shops`, [shop#30, region#31])
                        +- Aggregate [shop#30], [shop#30, max(region#31)]
                           +- CollectMetrics source:shops, [count(1) AS rows#77L], 3
                              +- LogicalRDD [shop#30, region#31], false
"""  # noqa: E501


def test_aggregate_is_named_by_its_view_its_window_and_what_it_counts() -> None:
    found = shape(totals())
    assert found.streams == ("orders",), "a table that is joined has no offsets"
    assert [(one.where, one.what) for one in found.stateful] == [
        (
            "totals",
            "GROUP BY window(1 min), shop, region: sum(amount), round(avg(amount), 2)",
        ),
        ("totals", "watermark on at"),
    ]


def test_numbers_of_a_session_do_not_matter() -> None:
    assert shape(totals(first=0)) == shape(totals(first=500))


def test_width_of_a_window_and_keys_matter() -> None:
    assert shape(totals()) != shape(totals(width_us=300_000_000))
    assert "window(5 min)" in shape(totals(width_us=300_000_000)).stateful[0].what
    assert shape(totals()) != shape(totals(keys="shop#10"))


def test_names_of_results_do_not_matter() -> None:
    renamed = totals().replace("AS total#33", "AS sum of all, really#33")
    assert shape(renamed) == shape(totals())


def test_order_of_streams_is_that_of_the_plan() -> None:
    def joined(first: str, second: str, condition: str) -> str:
        return f"""
~Project [id#9]
+- ~Join LeftOuter, {condition}
   :- ~SubqueryAlias o
{source(first, "   :  ")}
   +- ~SubqueryAlias p
{source(second, "      ", 50)}
"""

    one = shape(joined("orders", "payments", "(id#9 = id#24)"))
    other = shape(joined("payments", "orders", "(id#9 = id#24)"))
    assert (one.streams, other.streams) == (("orders", "payments"), ("payments", "orders"))
    assert ("out", "Join LeftOuter, (id = id)") in [(o.where, o.what) for o in one.stateful]
    assert shape(joined("orders", "payments", "(id#9 = shop#24)")) != one


def test_other_operators_with_state() -> None:
    tree = f"""
~GlobalLimit 5
+- ~LocalLimit 5
   +- ~Distinct
      +- ~Project [upper(shop#10) AS s#99, at#12-T120000ms]
         +- ~DeduplicateWithinWatermark [id#9]
            +- ~TransformWithStateInPySpark processor(id#1, at#2)#9, 1, [id#5], Append
{source("orders", "               ")}
"""
    assert [one.what for one in shape(tree).stateful] == [
        "GlobalLimit 5",
        "SELECT DISTINCT [upper(shop), at]",
        "DeduplicateWithinWatermark [id]",
        "TransformWithStateInPySpark processor(id, at), 1, [id], Append",
        "watermark on at",
    ]


def test_plan_without_state_or_streams() -> None:
    assert shape("Project [a#1]\n+- LocalRelation [a#1]") == Shape((), ())
    assert shape_of("", (), "out") == Shape((), ())


def test_text_of_several_lines_in_a_query_is_no_node() -> None:
    broken = totals().replace("> cast(", "> raise_error(translate(x, \n\r,   ), + more\n\n) cast(")
    assert shape(broken) == shape(totals())
