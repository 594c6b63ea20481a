package eddyline;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.types.AtomicType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import py4j.Gateway;
import scala.Function1;
import scala.collection.Iterator;
import scala.collection.Seq;
import scala.runtime.AbstractPartialFunction;

/**
 * Describes Spark's plans and expressions to Python, as lines of text; plan_trees.py reads them.
 *
 * One call replaces several for each node. An object is named by its id in Py4J, under which Python
 * finds it, and releases it, as if Py4J had returned it.
 */
public final class Trees {
    private static final String UNKNOWN = "-";
    private static final Map ATOMIC = new ConcurrentHashMap(); // what was returned for atomic types

    private final Gateway gateway;
    private final scala.collection.immutable.Seq empty = PythonUtils.toSeq(new java.util.ArrayList());

    public Trees(Gateway gateway) {
        this.gateway = gateway;
    }

    /** The elements of a Seq, a line for each; expressions with all below them. */
    public String elements(Seq values) {
        StringBuilder text = new StringBuilder();
        for (Iterator i = values.iterator(); i.hasNext();) {
            Object one = i.next();
            if (one instanceof Expression) {
                describeTree(gateway.putNewObject(one), (Expression) one, text);
                continue;
            }
            describe(gateway.putNewObject(one), one, text);
            text.append('\n');
        }
        return text.toString();
    }

    /** The attributes of a plan's output, as `elements` does. */
    public String output(QueryPlan plan) {
        return elements(plan.output());
    }

    /**
     * A plan or expression, each node before those below it; the subqueries of a plan come after its children, and then
     * the expressions of a logical plan.
     */
    public String tree(TreeNode root) {
        StringBuilder text = new StringBuilder();
        describeTree(UNKNOWN, root, text); // Python has it already
        return text.toString();
    }

    private void describeTree(String id, TreeNode node, StringBuilder text) {
        describe(id, node, text);
        Seq subqueries = node instanceof QueryPlan ? ((QueryPlan) node).subqueries() : empty;
        Seq expressions = node instanceof LogicalPlan ? ((QueryPlan) node).expressions() : empty;
        if (node instanceof QueryPlan) {
            text.append(' ').append(subqueries.size());
        }
        if (node instanceof LogicalPlan) {
            text.append(' ').append(expressions.size());
        }
        text.append('\n');
        describeAll(node.children(), text);
        describeAll(subqueries, text);
        describeAll(expressions, text);
    }

    private void describeAll(Seq nodes, StringBuilder text) {
        for (Iterator i = nodes.iterator(); i.hasNext();) {
            TreeNode node = (TreeNode) i.next();
            describeTree(gateway.putNewObject(node), node, text);
        }
    }

    /**
     * Its id in Py4J, class, number of children, whether it is deterministic, id of a named expression, name and type
     * of an attribute, value of a literal; `-` for what it hasn't, or what isn't plain.
     */
    private void describe(String id, Object one, StringBuilder text) {
        text.append(id).append(' ').append(one.getClass().getName());
        text.append(' ').append(one instanceof TreeNode ? ((TreeNode) one).children().size() : 0);
        if (!(one instanceof Expression)) {
            text.append(" - - - - -");
            return;
        }
        text.append(((Expression) one).deterministic() ? " 1 " : " 0 ");
        boolean attribute = one instanceof AttributeReference;
        boolean named = attribute || one instanceof Alias;
        text.append(named ? String.valueOf(((NamedExpression) one).exprId().id()) : UNKNOWN);
        text.append(' ').append(attribute ? plain(((NamedExpression) one).name()) : UNKNOWN);
        text.append(' ').append(attribute ? atomic(((Expression) one).dataType()) : UNKNOWN);
        text.append(' ').append(one instanceof Literal ? value((Literal) one) : UNKNOWN);
    }

    /** A null, boolean or whole number as JSON. */
    private static String value(Literal literal) {
        Object one = literal.value();
        boolean simple = one == null || one instanceof Boolean || one instanceof Integer || one instanceof Long;
        return simple ? String.valueOf(one) : UNKNOWN;
    }

    /** An atomic type as JSON. */
    private static String atomic(DataType type) {
        if (!(type instanceof AtomicType)) {
            return UNKNOWN;
        }
        String known = (String) ATOMIC.get(type);
        if (known == null) {
            known = plain(type.json());
            ATOMIC.put(type, known);
        }
        return known;
    }

    /** A text of visible ASCII characters. */
    private static String plain(String text) {
        for (int i = 0; i < text.length(); i++) {
            if (text.charAt(i) <= ' ' || text.charAt(i) > '~') {
                return UNKNOWN;
            }
        }
        return text.isEmpty() ? UNKNOWN : text;
    }

    /** The class of an object. */
    public String className(Object one) {
        return one.getClass().getName();
    }

    /** A Seq of objects, by their ids in Py4J. */
    public scala.collection.immutable.Seq seq(String ids) {
        java.util.ArrayList found = new java.util.ArrayList();
        String[] each = ids.split(" ");
        for (int i = 0; i < each.length; i++) {
            found.add(gateway.getObject(each[i]));
        }
        return PythonUtils.toSeq(found);
    }

    /** Forgets objects, by their ids in Py4J: Python has dropped them. */
    public void release(String ids) {
        String[] each = ids.split(" ");
        for (int i = 0; i < each.length; i++) {
            gateway.deleteObject(each[i]);
        }
    }

    /** The type of an expression, as JSON. */
    public String typeOf(Expression one) {
        return one.dataType().json();
    }

    /** `one AS name`, with the id of an attribute, or a new one for null. */
    public Alias alias(Expression one, String name, NamedExpression attribute) {
        ExprId id = attribute == null ? NamedExpression$.MODULE$.newExprId() : attribute.exprId();
        return new Alias(one, name, id, empty, scala.Option.empty(), empty);
    }

    /**
     * A projection.
     *
     * @param columns ids in Py4J of expressions, each followed by what it becomes: a new name, or `@` and the id of an
     *     attribute whose name and id it gets, or `-` if it is named already
     */
    public LogicalPlan project(String columns, LogicalPlan child) {
        java.util.ArrayList found = new java.util.ArrayList();
        String[] each = columns.split(" ");
        for (int i = 0; i + 1 < each.length; i += 2) { // there may be none
            Object one = gateway.getObject(each[i]);
            String as = each[i + 1];
            if (as.startsWith("@")) {
                NamedExpression attribute = (NamedExpression) gateway.getObject(as.substring(1));
                found.add(alias((Expression) one, attribute.name(), attribute));
            } else {
                found.add(as.equals(UNKNOWN) ? one : alias((Expression) one, as, null));
            }
        }
        return new Project(PythonUtils.toSeq(found), child);
    }

    /** Spark's SQL of some expressions, as JSON. */
    public String sql(Seq expressions) throws JsonProcessingException {
        java.util.ArrayList found = new java.util.ArrayList();
        for (Iterator i = expressions.iterator(); i.hasNext();) {
            found.add(((Expression) i.next()).sql());
        }
        return new ObjectMapper().writeValueAsString(found);
    }

    /** A node over another child. */
    public TreeNode withChild(TreeNode node, TreeNode child) {
        return node.withNewChildren(PythonUtils.toSeq(java.util.Collections.singletonList(child)));
    }

    /** A plan with another leaf in the place of its only one. */
    public TreeNode overLeaf(TreeNode plan, TreeNode leaf) {
        Seq children = plan.children();
        if (children.isEmpty()) {
            return leaf;
        }
        if (children.size() > 1) {
            throw new IllegalArgumentException("more than one leaf: " + plan);
        }
        return withChild(plan, overLeaf((TreeNode) children.head(), leaf));
    }

    /** A resolved plan, such that Spark doesn't resolve it once more. */
    private static LogicalPlan resolved(LogicalPlan plan) {
        plan.setAnalyzed();
        return plan;
    }

    /**
     * A resolved plan in which all references to a computed column are equal: spelled as where it is computed, and
     * without qualifiers.
     *
     * Spark's optimiser (CollapseProject, 4.3) counts such references by equality and keeps the counts by id: of `f` and
     * `t.f` it keeps the count of either one, by the hashes of ids that differ from one compilation to the next.
     */
    public LogicalPlan withEqualReferences(LogicalPlan plan) {
        Map names = new HashMap();
        addAliases(plan, names);
        return (LogicalPlan) plan.transformAllExpressionsWithSubqueries(new EqualReferences(names));
    }

    private static void addAliases(TreeNode node, Map names) {
        if (node instanceof Alias) {
            names.put(Long.valueOf(((Alias) node).exprId().id()), ((Alias) node).name());
        }
        if (node instanceof QueryPlan) {
            addAllAliases(((QueryPlan) node).subqueries(), names);
            addAllAliases(((QueryPlan) node).expressions(), names);
        }
        addAllAliases(node.children(), names);
    }

    private static void addAllAliases(Seq nodes, Map names) {
        for (Iterator i = nodes.iterator(); i.hasNext();) {
            addAliases((TreeNode) i.next(), names);
        }
    }

    private final class EqualReferences extends AbstractPartialFunction {
        private final Map names; // of computed columns, by their ids

        EqualReferences(Map names) {
            this.names = names;
        }

        public boolean isDefinedAt(Object one) {
            return one instanceof AttributeReference
                && names.containsKey(Long.valueOf(((AttributeReference) one).exprId().id()));
        }

        public Object applyOrElse(Object one, Function1 otherwise) {
            if (!isDefinedAt(one)) {
                return otherwise.apply(one);
            }
            AttributeReference reference = (AttributeReference) one;
            Object name = names.get(Long.valueOf(reference.exprId().id()));
            return reference.withName((String) name).withQualifier(empty);
        }
    }

    /**
     * The ids of a plan's output, and of what its nodes and those of its subqueries refer to.
     *
     * @param listing simple names of classes of nodes that need each attribute of their children
     */
    public String neededIds(QueryPlan plan, String listing) {
        Set ids = new HashSet();
        addIds(plan.output(), ids);
        addNeeded(plan, new HashSet(Arrays.asList(listing.split(" "))), ids);
        StringBuilder text = new StringBuilder();
        for (java.util.Iterator i = ids.iterator(); i.hasNext();) {
            text.append(i.next()).append(' ');
        }
        return text.toString();
    }

    private static void addNeeded(QueryPlan node, Set listing, Set ids) {
        boolean all = listing.contains(node.getClass().getSimpleName());
        if (!node.children().isEmpty()) { // a leaf refers to all that it gives
            addIds(node.references().toSeq(), ids);
        }
        for (Iterator i = node.children().iterator(); i.hasNext();) {
            QueryPlan child = (QueryPlan) i.next();
            if (all) {
                addIds(child.output(), ids);
            }
            addNeeded(child, listing, ids);
        }
        for (Iterator i = node.subqueries().iterator(); i.hasNext();) {
            addNeeded((QueryPlan) i.next(), listing, ids);
        }
    }

    private static void addIds(Seq attributes, Set ids) {
        for (Iterator i = attributes.iterator(); i.hasNext();) {
            ids.add(Long.valueOf(((NamedExpression) i.next()).exprId().id()));
        }
    }

    /** Whether anything in some trees has one of Catalyst's tree patterns. */
    public boolean contain(Seq trees, String pattern) {
        scala.Enumeration.Value wanted = TreePattern.withName(pattern);
        for (Iterator i = trees.iterator(); i.hasNext();) {
            if (((TreeNode) i.next()).containsPattern(wanted)) {
                return true;
            }
        }
        return false;
    }

    /** A resolved leaf without rows, with some columns. */
    public LogicalPlan placeholder(scala.collection.immutable.Seq columns) {
        return resolved(new LocalRelation(columns, empty, false, scala.Option.empty()));
    }

    /** A resolved leaf without rows, with new columns for a schema, as JSON. */
    public LogicalPlan placeholderFor(String schema) {
        return placeholder(DataTypeUtils.toAttributes((StructType) DataType.fromJson(schema)));
    }

    /** The id of the first column of a plan's first leaf. */
    public long leafId(QueryPlan plan) {
        QueryPlan leaf = plan;
        while (!leaf.children().isEmpty()) {
            leaf = (QueryPlan) leaf.children().head();
        }
        return ((NamedExpression) leaf.output().head()).exprId().id();
    }
}
