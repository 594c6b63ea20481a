package eddyline;

import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import py4j.Gateway;
import scala.collection.Iterator;
import scala.collection.Seq;

/**
 * Describes Spark's plans and expressions to Python, as lines of text; plan_trees.py reads them.
 *
 * One call replaces several for each node. An object is named by its id in Py4J, under which Python
 * finds it, and releases it, as if Py4J had returned it.
 */
public final class Trees {
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
                describeChild((Expression) one, text);
                continue;
            }
            describe(gateway.putNewObject(one), one, text);
            text.append('\n');
        }
        return text.toString();
    }

    /** A plan or expression, each node before those below it; a plan's subqueries come after its children. */
    public String tree(TreeNode root) {
        StringBuilder text = new StringBuilder();
        describeTree("-", root, text); // Python has it already
        return text.toString();
    }

    private void describeTree(String id, TreeNode node, StringBuilder text) {
        describe(id, node, text);
        Seq subqueries = node instanceof QueryPlan ? ((QueryPlan) node).subqueries() : null;
        if (subqueries != null) {
            text.append(' ').append(subqueries.size());
        }
        text.append('\n');
        for (Iterator i = node.children().iterator(); i.hasNext();) {
            describeChild((TreeNode) i.next(), text);
        }
        if (subqueries != null) {
            for (Iterator i = subqueries.iterator(); i.hasNext();) {
                describeChild((TreeNode) i.next(), text);
            }
        }
    }

    private void describeChild(TreeNode node, StringBuilder text) {
        describeTree(gateway.putNewObject(node), node, text);
    }

    /** Its id in Py4J, class, number of children, id of a named expression, and whether it is deterministic; or -1. */
    private void describe(String id, Object one, StringBuilder text) {
        text.append(id).append(' ').append(one.getClass().getName()).append(' ');
        text.append(one instanceof TreeNode ? ((TreeNode) one).children().size() : -1).append(' ');
        boolean named = one instanceof AttributeReference || one instanceof Alias;
        text.append(named ? ((NamedExpression) one).exprId().id() : -1).append(' ');
        text.append(one instanceof Expression ? (((Expression) one).deterministic() ? 1 : 0) : -1);
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

    /** A plan with another leaf in the place of its only one. */
    public TreeNode overLeaf(TreeNode plan, TreeNode leaf) {
        Seq children = plan.children();
        if (children.isEmpty()) {
            return leaf;
        }
        if (children.size() > 1) {
            throw new IllegalArgumentException("more than one leaf: " + plan);
        }
        TreeNode over = overLeaf((TreeNode) children.head(), leaf);
        return plan.withNewChildren(PythonUtils.toSeq(java.util.Collections.singletonList(over)));
    }

    /** A resolved plan, such that Spark doesn't resolve it once more. */
    public LogicalPlan resolved(LogicalPlan plan) {
        plan.setAnalyzed();
        return plan;
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
