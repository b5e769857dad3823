"""The settings of a pipeline's Spark, before there is one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ottla.pipelines.jars import DRIVERS, Jar, delta_advice
from ottla.pipelines.language.model import (
    DeltaSink,
    FileSink,
    JdbcSink,
    JdbcSource,
    Pipeline,
    Source,
    TopicSource,
)
from ottla.pipelines.language.problems import PipelineFailed, Place
from ottla.pipelines.launch import session
from ottla.pipelines.launch.jvm import submit_arguments
from ottla.pipelines.launch.session import (
    LATE_SECOND_COMPILER,
    OF_SPARK_SUBMIT,
    ONE_COMPILER,
    SMALL_COLLECTOR,
    environment,
    local_cores,
    settings_of,
    start_session,
)
from ottla.pipelines.sinks.kinds import sink_kind
from ottla.pipelines.sources.kinds import source_kind

PLACE = Place(Path("p.yaml"), 1, 1)
LAKE = DeltaSink(name="lake", place=PLACE, input="a", path="/lake")


def pipeline(spark: dict[str, str] | None = None, *sinks: DeltaSink | FileSink) -> Pipeline:
    return Pipeline(
        name="shop", file=Path("p.yaml"), bootstrap="a:1", sources={}, views={}, tests={},
        sinks={one.name: one for one in sinks}, spark=spark or {},
    )  # fmt: skip


def test_local_spark_is_small_quiet_and_alone() -> None:
    found = settings_of(pipeline(), "local[3]")
    assert found["spark.sql.shuffle.partitions"] == "3"
    assert found["spark.ui.enabled"] == "false"
    assert found["spark.driver.host"] == "127.0.0.1"
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found["spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"] == "false"
    options = found["spark.driver.extraJavaOptions"]
    assert options.endswith("-Dottla.log.level=off")
    assert session.LOG4J.is_file()
    assert session.LOG4J.as_uri() in options


def test_cluster_is_left_as_it_is() -> None:
    found = settings_of(pipeline(), "spark://master:7077")
    assert "spark.sql.shuffle.partitions" not in found
    assert "spark.ui.enabled" not in found
    assert "spark.driver.host" not in found


LOGS = "spark.sql.streaming.checkpointFileManagerClass"


def files(path: str) -> FileSink:
    return FileSink(name="f", place=PLACE, input="v", path=path, format="parquet")


def test_on_this_machine_spark_takes_the_short_way_to_its_own_files() -> None:
    assert settings_of(pipeline(), "local")[LOGS] == session.PLAIN_FILES
    assert LOGS in settings_of(pipeline(None, files("out")), "local", checkpoint="/c")
    assert LOGS in settings_of(pipeline(None, files("file:///out")), "local", checkpoint="file:/c")


def test_elsewhere_spark_chooses_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LOGS not in settings_of(pipeline(), "spark://master:7077")
    assert LOGS not in settings_of(pipeline(), "local", checkpoint="s3a://bucket/c")
    assert LOGS not in settings_of(pipeline(None, files("hdfs://h/out")), "local", checkpoint="/c")
    assert LOGS not in settings_of(pipeline({"spark.hadoop.fs.defaultFS": "hdfs://h"}), "local")
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert LOGS not in settings_of(pipeline(), "local")


def test_settings_of_the_file_win() -> None:
    own = {
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.session.timeZone": "Europe/Prague",
        "spark.driver.extraJavaOptions": "-Xss4m",
        "spark.master": "local[2]",
        "spark.jars": "a.jar",
    }
    found = settings_of(pipeline(own), "local[2]", jars=["b.jar"], packages=["g:a:1", "g:b:1"])
    assert found["spark.sql.shuffle.partitions"] == "7"
    assert found["spark.sql.session.timeZone"] == "Europe/Prague"
    options = found["spark.driver.extraJavaOptions"].removeprefix(f"{LATE_SECOND_COMPILER} ")
    assert options.startswith("-Xss4m -Dlog4j2.configurationFile=")
    assert found["spark.jars"] == f"{Path.cwd()}/a.jar,{Path.cwd()}/b.jar"
    assert found["spark.jars.packages"] == "g:a:1,g:b:1"
    assert "spark.master" not in found


def test_nothing_is_left_in_the_working_directory() -> None:
    """Spark would make `spark-warehouse` there, and Derby `derby.log`."""
    found = settings_of(pipeline(), "local[2]")
    warehouse = Path(found["spark.sql.warehouse.dir"])
    derby = f"-Dderby.stream.error.file={warehouse.parent}/derby.log"
    assert Path(tempfile.gettempdir()) in warehouse.parents
    assert derby in found["spark.driver.extraJavaOptions"].split()
    assert settings_of(pipeline(), "local[2]") == found
    own = {
        "spark.sql.warehouse.dir": "here",
        "spark.driver.extraJavaOptions": "-Dderby.stream.error.file=mine",
    }
    found = settings_of(pipeline(own), "local[2]")
    assert found["spark.sql.warehouse.dir"] == "here"
    assert found["spark.driver.extraJavaOptions"].count("derby") == 1


def test_what_spark_leaves_goes_with_the_process() -> None:
    script = (
        "from ottla.spark.startup.environment import scratch; print(scratch().resolve(), end='')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout).is_absolute()
    assert not Path(done.stdout).exists()


def test_verbose_shows_the_log_and_traces() -> None:
    found = settings_of(pipeline(), "local[*]", verbose=True)
    assert "-Dottla.log.level=info" in found["spark.driver.extraJavaOptions"]
    assert found["spark.sql.pyspark.jvmStacktrace.enabled"] == "true"


def test_delta_is_set_up_when_its_jars_are_given() -> None:
    key = "spark.sql.catalog.spark_catalog"
    assert key in settings_of(pipeline(None, LAKE), "local", packages=["io.delta:d:1"])
    assert key not in settings_of(pipeline(None, LAKE), "local")
    assert key not in settings_of(pipeline(), "local", jars=["x.jar"])


def test_workers_of_this_machine_run_this_python() -> None:
    found = environment("local[*]", {})
    python = found["PYSPARK_PYTHON"]
    assert found["PYSPARK_DRIVER_PYTHON"] == python
    script = "import sys; print(sys.executable, end='')"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True)
    assert done.stdout == sys.executable
    assert found["SPARK_LOCAL_IP"] == "127.0.0.1"
    own = {
        "SPARK_LOCAL_IP": "10.0.0.1",
        "SPARK_HOME": "/opt/spark",
        "SPARK_LAUNCHER_OPTS": "-Xss4m",
    }
    assert own.items() <= environment("local", own).items()
    assert environment("spark://master:7077", {}) == {}


def test_workers_of_this_machine_find_pyspark_where_it_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = Path(environment("local[*]", {})["SPARK_HOME"])
    assert tmp_path in home.parents
    assert (home / "bin" / "spark-submit").is_file()
    assert list((home / "jars").glob("spark-core_*.jar"))
    assert not (home / "python").exists()
    assert environment("local[*]", {})["SPARK_HOME"] == str(home)


def test_a_home_that_was_tidied_away_in_part_is_made_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those do that remove old files from /tmp, and leave directories."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = Path(environment("local[*]", {})["SPARK_HOME"])
    for part in ("jars", "bin"):
        (home / part).unlink()
        assert environment("local[*]", {})["SPARK_HOME"] == str(home)
        assert (home / "bin" / "spark-submit").is_file()
        assert list((home / "jars").glob("spark-core_*.jar"))


def test_a_cache_without_a_place_of_its_own_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java looks for Spark from another directory than this."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    home = Path(environment("local[*]", {})["SPARK_HOME"])
    assert tmp_path / "home" in home.parents


def test_a_home_that_cannot_be_made_is_gone_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    assert "SPARK_HOME" not in environment("local[*]", {})


def test_only_brief_commands_go_without_the_second_compiler() -> None:
    own = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"}
    brief = settings_of(pipeline(own), "local", is_brief=True)["spark.driver.extraJavaOptions"]
    assert brief.startswith("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:TieredStopAtLevel=4 ")
    assert "Tiered" not in settings_of(pipeline(), "local")["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize("where", ["file", "defaults", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS"])
def test_a_run_on_this_machine_has_its_second_compiler_later_unless_told_otherwise(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OF_SPARK_SUBMIT:
        monkeypatch.delenv(name, raising=False)
    java = "spark.driver.extraJavaOptions"
    assert LATE_SECOND_COMPILER in settings_of(pipeline(), "local[2]")[java]
    assert "Tier4" not in settings_of(pipeline(), "spark://there:7077")[java]
    chosen = "-XX:Tier4InvocationThreshold=7"
    names = {"file": java, "defaults": "spark.driver.defaultJavaOptions"}
    own = {names[where]: chosen} if where in names else {}
    if where not in names:
        monkeypatch.setenv(where, chosen)
    options = settings_of(pipeline(own), "local[2]")[java]
    assert options.count("Tier4") == (where == "file")


def test_java_knows_the_options_of_its_compilers() -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("no java")
    options = [*LATE_SECOND_COMPILER.split(), ONE_COMPILER, SMALL_COLLECTOR]
    command = [java, *options, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower()


@pytest.mark.parametrize("where", ["file", "defaults", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS"])
def test_java_is_told_of_one_collector_only(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not start with two."""
    chosen = "-XX:+UseG1GC"
    names = {
        "file": "spark.driver.extraJavaOptions",
        "defaults": "spark.driver.defaultJavaOptions",
    }
    own = {}
    if where in names:
        own[names[where]] = chosen
    else:
        monkeypatch.setenv(where, chosen)
    brief = settings_of(pipeline(own), "local", is_brief=True)["spark.driver.extraJavaOptions"]
    assert "-XX:+UseSerialGC" not in brief
    assert "-XX:TieredStopAtLevel=1" in brief
    launcher = environment("local", os.environ)["SPARK_LAUNCHER_OPTS"]
    assert ("-XX:+UseSerialGC" in launcher) == (where != "JAVA_TOOL_OPTIONS")


def test_cores_of_a_local_master() -> None:
    cores = len(os.sched_getaffinity(0))
    found = [local_cores(one) for one in ("local", "local[4]", "local[*]", "local[*,2]")]
    assert found == [1, 4, cores, cores]


def test_missing_java_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineFailed, match="Spark needs Java 17 or newer, and no java is found"):
        start_session(pipeline())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineFailed, match="where there is no bin/java; correct or unset it"):
        start_session(pipeline())


def test_what_a_part_of_a_pipeline_needs() -> None:
    def jdbc(url: str, **options: str) -> JdbcSource:
        return JdbcSource(name="a", place=PLACE, url=url, table="t", options=options)

    def needed(source: Source) -> Jar | None:
        return source_kind(source).needed_jar(source, "4.3.0")

    assert needed(jdbc("jdbc:postgresql://h/db")) == DRIVERS["postgresql"]
    assert needed(jdbc("jdbc:somedb://h/db")) is None
    own = needed(jdbc("jdbc:postgresql://h/db", Driver="my.Driver"))
    assert own is not None
    assert own.java_class == "my.Driver"
    sink = JdbcSink(name="b", place=PLACE, input="a", url="JDBC:PostgreSQL://h", table="t")
    assert sink_kind(sink).needed_jar(sink, "4.3.0") == DRIVERS["postgresql"]
    assert needed(TopicSource(name="c", place=PLACE, topics=("t",))) is None


def test_delta_is_named_after_its_spark() -> None:
    assert delta_advice("4.1.2") == "io.delta:delta-spark_4.1_2.13:4.4.0"
    newer = delta_advice("4.3.0")
    assert newer.startswith("io.delta:delta-spark_4.2_2.13:4.4.0, which does not run on this Spark")


def test_what_the_user_hands_to_spark_submit_is_kept(tmp_path: Path) -> None:
    theirs = tmp_path / "their own.properties"
    theirs.write_text("spark.a=1\nspark.b=2")
    given = f"--jars 'a b.jar' --properties-file '{theirs}' pyspark-shell"
    with submit_arguments({"spark.b": " x=\\\n", "spark.c d": "2"}, given) as arguments:
        words = shlex.split(arguments)
        assert words[2:] == ["--jars", "a b.jar", "pyspark-shell"]
        file = Path(words[1])
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        lines = file.read_text().splitlines()
        assert lines == ["spark.a=1", "spark.b=2", "", r"spark.b=\ x=\\\n", r"spark.c\ d=2"]
    assert not file.parent.exists()


def test_the_defaults_of_a_spark_installation_still_count() -> None:
    with submit_arguments({"spark.driver.extraJavaOptions": "-Da='b c' -Xss4m"}, None) as arguments:
        words = shlex.split(arguments)
        assert words[2:] == ["--load-spark-defaults", "pyspark-shell"]
        name, _, at = Path(words[1]).read_text().strip().partition("=@")
        assert name == "spark.driver.extraJavaOptions"
        assert Path(at).read_text() == '"-Da=b c"\n"-Xss4m"\n'


def test_files_of_options_may_lie_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher of Spark splits options at blanks, and Java reads the file."""
    if shutil.which("java") is None:
        pytest.skip("no java here, which is asked")
    directory = tmp_path / "a b'c"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    options = """-Da='b \\ "c"' '-Dd=e
f' """
    with submit_arguments({"spark.driver.extraJavaOptions": options}, None) as arguments:
        _, value = Path(shlex.split(arguments)[1]).read_text().strip().split("=", 1)
        (at,) = shlex.split(value)
        java = subprocess.run(
            ["java", at, "-XshowSettings:properties", "-version"], capture_output=True, text=True
        )
    assert java.returncode == 0, java.stderr
    assert '    a = b \\ "c"\n' in java.stderr
    assert "".join(java.stderr.partition("    d = ")[2].split()).startswith("ef")


def test_options_that_nobody_can_read_are_one_line() -> None:
    with pytest.raises(PipelineFailed, match="extraJavaOptions: No closing quotation"):
        start_session(pipeline({"spark.driver.extraJavaOptions": "-Da='b"}))
