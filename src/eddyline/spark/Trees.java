package eddyline;

import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import py4j.Gateway;
import scala.collection.Iterator;
import scala.collection.Seq;

/**
 * Tells Python about Spark's plans and expressions; see trees.py, which reads the answers.
 *
 * One call does what would be several for each node. An object is told by its id in Py4J, under which Python
 * finds it, and releases it, as if Py4J had returned it.
 */
public final class Trees {
    private final Gateway gateway;

    public Trees(Gateway gateway) {
        this.gateway = gateway;
    }

    /** The elements of a Seq, a line for each; expressions with all below them. */
    public String elements(Seq values) {
        StringBuilder told = new StringBuilder();
        for (Iterator i = values.iterator(); i.hasNext();) {
            Object one = i.next();
            if (one instanceof Expression) {
                tellBelow((Expression) one, told);
                continue;
            }
            tell(gateway.putNewObject(one), one, told);
            told.append('\n');
        }
        return told.toString();
    }

    /** A plan or expression, each node before those below it; a plan's subqueries come after its children. */
    public String tree(TreeNode root) {
        StringBuilder told = new StringBuilder();
        tellTree("-", root, told); // Python has it already
        return told.toString();
    }

    private void tellTree(String id, TreeNode node, StringBuilder told) {
        tell(id, node, told);
        Seq subqueries = node instanceof QueryPlan ? ((QueryPlan) node).subqueries() : null;
        if (subqueries != null) {
            told.append(' ').append(subqueries.size());
        }
        told.append('\n');
        for (Iterator i = node.children().iterator(); i.hasNext();) {
            tellBelow((TreeNode) i.next(), told);
        }
        if (subqueries != null) {
            for (Iterator i = subqueries.iterator(); i.hasNext();) {
                tellBelow((TreeNode) i.next(), told);
            }
        }
    }

    private void tellBelow(TreeNode node, StringBuilder told) {
        tellTree(gateway.putNewObject(node), node, told);
    }

    /** Its id in Py4J, class, number of children, id of a named expression, and whether it is deterministic; or -1. */
    private void tell(String id, Object one, StringBuilder told) {
        told.append(id).append(' ').append(one.getClass().getName()).append(' ');
        told.append(one instanceof TreeNode ? ((TreeNode) one).children().size() : -1).append(' ');
        boolean named = one instanceof AttributeReference || one instanceof Alias;
        told.append(named ? ((NamedExpression) one).exprId().id() : -1).append(' ');
        told.append(one instanceof Expression ? (((Expression) one).deterministic() ? 1 : 0) : -1);
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
