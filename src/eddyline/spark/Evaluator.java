package eddyline;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.ObjectStreamClass;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Properties;

import org.apache.spark.Dependency;
import org.apache.spark.Partition;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.memory.MemoryManager;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.rdd.ParallelCollectionPartition;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.physical.SinglePartition$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.CommandExecutionMode;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec;
import org.apache.spark.sql.types.StructType;
import scala.Enumeration;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;

/**
 * Evaluates physical plans in the calling thread; see driver.py, which has it compiled.
 *
 * One call does what would be a dozen from Python. Rows come and go through files as Arrow messages: a larger
 * answer would wait 40 ms in Py4J's socket.
 */
public final class Evaluator {
    private final MemoryManager memory;
    private final Properties settings;
    private final Properties interpreting;
    private final String zone;
    private final Field memoryField;
    private final Field settingsField;

    /**
     * In a task Spark's expressions read the settings of the session from the task's properties. One of them, which is
     * internal, decides whether code is generated for them.
     */
    public Evaluator(MemoryManager memory, Properties settings, String zone) throws NoSuchFieldException {
        this.memory = memory;
        this.settings = settings;
        this.interpreting = (Properties) settings.clone();
        this.interpreting.setProperty("spark.sql.codegen.factoryMode", "NO_CODEGEN");
        this.zone = zone;
        this.memoryField = TaskContextImpl.class.getDeclaredField("taskMemoryManager");
        this.settingsField = TaskContextImpl.class.getDeclaredField("localProperties");
        this.memoryField.setAccessible(true);
        this.settingsField.setAccessible(true);
    }

    /** A leaf of one partition with the columns of another plan, whose rows come later. */
    public Object leaf(SparkSession session, LogicalPlan like) throws ReflectiveOperationException {
        Object none = Option.empty();
        Object rows = new Rows(session.sparkContext(), like.schema(), zone);
        Object single = SinglePartition$.MODULE$, unordered = PythonUtils.toSeq(Collections.emptyList());
        Object[] given = {like.output(), rows, single, unordered, false, none, session, none, none, false};
        Constructor made = LogicalRDD.class.getConstructors()[0]; // some versions of Spark need fewer values
        return made.newInstance(Arrays.copyOf(given, made.getParameterCount()));
    }

    /**
     * The physical form of a resolved plan over such a leaf. It has no shuffles, as all rows are in one partition already.
     *
     * Its input is turned into Spark's own rows first: the code that Spark generates for functions like
     * `transform` fails on an array from Arrow with a null in it.
     */
    public SparkPlan planned(SparkSession session, LogicalPlan plan) {
        plan.setAnalyzed();
        Enumeration.Value all = CommandExecutionMode.ALL();
        return narrow(session.sessionState().executePlan(plan, all).executedPlan(), false);
    }

    /** Interpreted, it has none of the nodes that stand for generated code either. */
    private static SparkPlan narrow(SparkPlan plan, boolean interpreted) {
        boolean staged = plan instanceof WholeStageCodegenExec || plan instanceof InputAdapter;
        if (plan instanceof ShuffleExchangeExec || staged && interpreted) {
            return narrow((SparkPlan) plan.children().head(), interpreted);
        }
        if (plan instanceof RDDScanExec && !interpreted) {
            return new InputAdapter(plan);
        }
        List children = new ArrayList();
        for (scala.collection.Iterator i = plan.children().iterator(); i.hasNext();) {
            children.add(narrow((SparkPlan) i.next(), interpreted));
        }
        return children.isEmpty() ? plan : (SparkPlan) plan.withNewChildren(PythonUtils.toSeq(children));
    }

    /** The rows of a physical plan with one leaf, by code that Spark generates and compiles for it. */
    public Plan generated(SparkPlan plan) {
        return new Plan(plan.execute(), plan.schema(), settings);
    }

    /** The same rows, by expressions that Spark interprets. */
    public Plan interpreted(SparkPlan plan) {
        return new Plan(narrow(plan, true).execute(), plan.schema(), interpreting);
    }

    /** A copy of a plan for another thread, made as Spark makes those of tasks: they share nothing that an evaluation changes. */
    public Plan copy(Plan plan) throws IOException, ClassNotFoundException {
        for (RDD rows = plan.rows; !rows.dependencies().isEmpty();) {  // an RDD keeps only those that were asked for
            rows = ((Dependency) rows.dependencies().head()).rdd();
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        ObjectOutputStream output = new ObjectOutputStream(bytes);
        output.writeObject(plan.rows);
        output.close();
        ObjectInputStream input = new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray())) {
            protected Class resolveClass(ObjectStreamClass named) throws IOException, ClassNotFoundException {
                try {
                    return Class.forName(named.getName(), false, Evaluator.class.getClassLoader());
                } catch (ClassNotFoundException error) {
                    return super.resolveClass(named);
                }
            }
        };
        return new Plan((RDD) input.readObject(), plan.schema, plan.settings);
    }

    /** A task in the calling thread. */
    public Task task(long number, String input, String output) throws Exception {
        return new Task(this, number, input, output);
    }

    /** The rows of the Arrow messages that are its only partition; an evaluation brings these. */
    public static final class Rows extends RDD {
        private final StructType schema;
        private final String zone;

        Rows(SparkContext context, StructType schema, String zone) {
            super(context, PythonUtils.toSeq(Collections.emptyList()), ClassTag$.MODULE$.AnyRef());
            this.schema = schema;
            this.zone = zone;
        }

        public scala.collection.Iterator compute(Partition messages, TaskContext context) {
            return ArrowConverters$.MODULE$.fromBatchIterator(
                ((Messages) messages).iterator(), schema, zone, false, false, context);
        }

        public Partition[] getPartitions() {
            return new Partition[] {new Messages(null, 0)};
        }
    }

    /** Arrow messages in the first bytes of a file, each after its length. */
    static final class Messages extends ParallelCollectionPartition {
        private final RandomAccessFile file;
        private final long end;

        Messages(RandomAccessFile file, long end) {
            super(0, 0, PythonUtils.toSeq(Collections.emptyList()), ClassTag$.MODULE$.AnyRef());
            this.file = file;
            this.end = end;
        }

        /** One message at a time is in memory. */
        public scala.collection.Iterator iterator() {
            return CollectionConverters.asScala(new Iterator() {
                private long at = 0;

                public boolean hasNext() {
                    return at < end;
                }

                public Object next() {
                    try {
                        file.seek(at);
                        byte[] message = new byte[file.readInt()];
                        file.readFully(message);
                        at = file.getFilePointer();
                        return message;
                    } catch (IOException error) {
                        throw new UncheckedIOException(error);
                    }
                }
            });
        }
    }

    public static final class Plan {
        final RDD rows;
        final StructType schema;
        final Properties settings;

        Plan(RDD rows, StructType schema, Properties settings) {
            this.rows = rows;
            this.schema = schema;
            this.settings = settings;
        }
    }

    public static final class Task {
        private final Evaluator evaluator;
        private final TaskContextImpl context;
        private final TaskMemoryManager memory;
        private final RandomAccessFile input;
        private final RandomAccessFile output;
        private final long cpu = cpuTime();

        Task(Evaluator evaluator, long number, String input, String output) throws Exception {
            this.evaluator = evaluator;
            this.context = TaskContext$.MODULE$.empty();
            this.memory = new TaskMemoryManager(evaluator.memory, number);
            evaluator.memoryField.set(this.context, this.memory);
            this.input = new RandomAccessFile(input, "r");
            this.output = new RandomAccessFile(output, "rw");
            TaskContext$.MODULE$.setTaskContext(this.context);
        }

        /**
         * Evaluate a plan over the Arrow messages in the first bytes of the input, each after its length.
         *
         * The output's file gets such messages, of so many rows at most (0: without a limit); returned is how
         * many bytes that are.
         */
        public long evaluate(Plan plan, long size, long rows) throws Exception {
            evaluator.settingsField.set(context, plan.settings);
            scala.collection.Iterator found = ArrowConverters$.MODULE$.toBatchIterator(
                plan.rows.iterator(new Messages(input, size), context), plan.schema, rows, evaluator.zone, false, false, context);
            output.seek(0);
            long written = 0;
            while (found.hasNext()) {
                byte[] one = (byte[]) found.next();
                output.write(ByteBuffer.allocate(4).putInt(one.length).array());
                output.write(one);
                written += 4 + one.length;
            }
            return written;
        }

        /** End the task, which gives its memory back; return the CPU time of the thread since its beginning in nanoseconds. */
        public long close() throws IOException {
            try {
                context.markTaskCompleted(Option.apply(null));
                memory.cleanUpAllAllocatedMemory();
            } finally {
                TaskContext$.MODULE$.unset();
                input.close();
                output.close();
            }
            return cpuTime() - cpu;
        }

        /** That of this thread; 0 where the JVM doesn't measure it. */
        private static long cpuTime() {
            return Math.max(ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime(), 0);
        }
    }
}
