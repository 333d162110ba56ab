//! Adapters as networks of ONNX's operators: the same formulas as [`apply`](rehang_core::adapter::apply), for any
//! runtime and device.
//!
//! | | name | shape |
//! |---|---|---|
//! | in | `old` | `[batch, d_old]` |
//! | in, where the map reads some | `side` | `[batch, d_side]` |
//! | out | `vector` | `[batch, d_new]`: h(o) |
//! | out | `sigma2` | `[batch]`: σ² |
//!
//! The map and the search for anchors, which are nearly all of the work, are in single precision. Kernel
//! expansions, the gate between kinds, lengths, distances, logits and σ² are in double precision. There,
//! terms that cancel and the coefficients of σ² would magnify earlier rounding. Constants are kept in single
//! precision, so that a device that has no other may do everything in single. NaN, infinite numbers and
//! vectors that are not of length 1 where they should be are for the caller to notice.

use crate::onnx::{Attribute, Network, TYPE_F32, TYPE_F64, TYPE_I64};
use crate::tensors::json;
use rehang_core::adapter::{
    Adapter, BranchInput, Dense, Geometry, InputScaling, KernelExpansion, LOG_VARIANCE_LIMIT, Map, OutOfFold,
    PerKind, SPARE_CANDIDATES, Uncertainty, cosine_weight,
};
use rehang_core::{Head, Matrix, Result, norm};

/// Translates an adapter into a network. Its metadata hold `old`, `new` and `output` (spaces as JSON),
/// `handicap` and `method`.
///
/// ```
/// use rehang_core::{Adapter, Distance, Space};
/// use rehang_files::adapter_network::to_network;
///
/// let space = |name| Space::new(name, 2, Distance::Cosine, false);
/// let network = to_network(&Adapter::identity(space("v1"), space("v2"), None)?)?;
/// let named = |ports: &[rehang_files::onnx::Port]| ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
/// assert_eq!((named(&network.inputs), named(&network.outputs)), (vec!["old".into()], vec!["vector".into(), "sigma2".into()]));
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`Adapter::check`].
pub fn to_network(adapter: &Adapter) -> Result<Network> {
    adapter.check()?;
    let (d_old, d_new) = (adapter.old.dimension, adapter.new.dimension);
    let mut network = Network::new("adapter");
    let old = network.input("old", &[d_old]);
    let side = adapter.side_dimension().map(|width| network.input("side", &[width]));
    let mut writer = Writer { network };
    let scaled = match adapter.map.input {
        InputScaling::AsIs => old,
        InputScaling::UnitLength => writer.unit_length(&old),
    };
    let output = writer.map(&adapter.map, &scaled, side.as_deref());
    let raw = writer.double(&output);
    let raw_norm = writer.norm(&raw);
    let vector = match &adapter.geometry {
        Geometry::Raw => output,
        Geometry::Sphere { fallback } => writer.sphere(fallback, &raw, &raw_norm),
        Geometry::MatchedNorms { raw: lengths, native } => {
            writer.matched_norms(lengths, native, &raw, &raw_norm)
        }
    };
    let log_variance = match &adapter.uncertainty {
        // A column of zeros that has the batch's length, and the constant added to it.
        Uncertainty::Constant { variance } => {
            let none = writer.times(&raw_norm, 0.0);
            writer.plus(&none, variance.ln())
        }
        Uncertainty::Linear { weight, bias } => {
            let product = writer.products(&raw, &Matrix::new(d_new, weight.clone())?);
            writer.plus(&product, *bias)
        }
        Uncertainty::OutOfFold(learned) => writer.out_of_fold(learned, &scaled, &raw, &raw_norm, &vector)?,
    };
    let limit = LOG_VARIANCE_LIMIT as f32;
    let limited = writer.clip(&log_variance, -limit, limit);
    let variance = writer.network.operator("Exp", &[&limited], &[]);
    let variance = writer.single(&variance);
    let sigma2 = writer.flat(&variance);
    let mut network = writer.network;
    network.output("vector", &vector, &[d_new]);
    network.output("sigma2", &sigma2, &[]);
    network.metadata = vec![
        ("method".into(), adapter.training.method.clone()),
        ("handicap".into(), adapter.handicap.to_string()),
        ("old".into(), json(&adapter.old)?),
        ("new".into(), json(&adapter.new)?),
        ("output".into(), json(&adapter.output_space())?),
    ];
    Ok(network)
}
/// Writer of formulas into a network. A row of a value is a row of the batch; one number a row is a column.
struct Writer {
    network: Network,
}

impl Writer {
    fn cast(&mut self, value: &str, to: i64) -> String {
        self.network.operator("Cast", &[value], &[("to", Attribute::Integer(to))])
    }

    /// Casts a value to double precision.
    fn double(&mut self, value: &str) -> String {
        self.cast(value, TYPE_F64)
    }

    /// Casts a value to single precision.
    fn single(&mut self, value: &str) -> String {
        self.cast(value, TYPE_F32)
    }

    fn number(&mut self, value: f32) -> String {
        let value = self.network.constant(&[], &[value]);
        self.double(&value)
    }

    /// Adds numbers that are the same for every row of the batch.
    fn row(&mut self, values: &[f32]) -> String {
        let values = self.network.constant(&[1, values.len()], values);
        self.double(&values)
    }

    fn with(&mut self, kind: &str, value: &str, number: f32) -> String {
        let number = self.number(number);
        self.network.operator(kind, &[value, &number], &[])
    }

    fn times(&mut self, value: &str, number: f32) -> String {
        self.with("Mul", value, number)
    }

    fn plus(&mut self, value: &str, number: f32) -> String {
        self.with("Add", value, number)
    }

    fn both(&mut self, kind: &str, left: &str, right: &str) -> String {
        self.network.operator(kind, &[left, right], &[])
    }

    fn clip(&mut self, value: &str, low: f32, high: f32) -> String {
        let (low, high) = (self.number(low), self.number(high));
        self.network.operator("Clip", &[value, &low, &high], &[])
    }

    /// Sums every row of a value, as a column.
    fn sum(&mut self, value: &str) -> String {
        let axis = self.network.integers(&[-1]);
        self.network.operator("ReduceSum", &[value, &axis], &[("keepdims", Attribute::Integer(1))])
    }

    fn squared_length(&mut self, value: &str) -> String {
        let squares = self.both("Mul", value, value);
        self.sum(&squares)
    }

    fn norm(&mut self, value: &str) -> String {
        let square = self.squared_length(value);
        self.network.operator("Sqrt", &[&square], &[])
    }

    /// `value / length`, and 0 where the length is 0.
    fn divided(&mut self, value: &str, length: &str) -> String {
        let length = self.with("Max", length, f32::MIN_POSITIVE);
        self.both("Div", value, &length)
    }

    /// `Wᵀ` as a constant in double precision.
    fn transposed(&mut self, weight: &Matrix) -> String {
        let (rows, columns) = (weight.rows(), weight.columns());
        let transposed = Matrix::from_fn(columns, rows, |row, column| weight.row(column)[row]);
        let transposed = self.network.constant(&[columns, rows], transposed.as_slice());
        self.double(&transposed)
    }

    /// `x Wᵀ` in double precision.
    fn products(&mut self, value: &str, weight: &Matrix) -> String {
        let transposed = self.transposed(weight);
        self.both("MatMul", value, &transposed)
    }

    /// Scales rows to length 1, in single precision; a zero row stays zero.
    fn unit_length(&mut self, value: &str) -> String {
        let value = self.double(value);
        let length = self.norm(&value);
        let unit = self.divided(&value, &length);
        self.single(&unit)
    }

    /// Reshapes a column to one number a row, `[batch]`.
    fn flat(&mut self, column: &str) -> String {
        let shape = self.network.integers(&[-1]);
        self.both("Reshape", column, &shape)
    }

    fn layers(&mut self, input: &str, layers: &[Dense]) -> String {
        layers.iter().fold(input.to_owned(), |input, layer| {
            let output = self.network.dense(&input, &layer.weight, &layer.bias);
            if layer.relu { self.network.operator("Relu", &[&output], &[]) } else { output }
        })
    }

    /// Raw output of the map.
    fn map(&mut self, map: &Map, scaled: &str, side: Option<&str>) -> String {
        let mut joined = self.layers(scaled, &map.branch);
        if let Some(second) = &map.second {
            let input = match second.input {
                BranchInput::Old => scaled,
                BranchInput::Side => side.unwrap_or(scaled),
            };
            let output = self.layers(input, &second.layers);
            joined =
                self.network.operator("Concat", &[&joined, &output], &[("axis", Attribute::Integer(-1))]);
        }
        let mut raw = self.layers(&joined, &map.mixer);
        if let Some(skip) = &map.skip {
            let output = self.network.dense(scaled, &skip.weight, &skip.bias);
            raw = self.both("Add", &raw, &output);
        }
        if let Some(kernel) = &map.kernel {
            let output = self.kernel(kernel, scaled);
            raw = self.both("Add", &raw, &output);
        }
        if let Some(kinds) = &map.per_kind {
            let output = self.per_kind(kinds, scaled);
            raw = self.both("Add", &raw, &output);
        }
        raw
    }

    /// `Σ_k p_k(o) · map_k(o)`, where p is the softmax of the gate. The softmax and the sum are in double
    /// precision.
    fn per_kind(&mut self, kinds: &PerKind, scaled: &str) -> String {
        let gate = self.map(&kinds.gate, scaled, None);
        let gate = self.double(&gate);
        let logs = self.network.operator("LogSoftmax", &[&gate], &[("axis", Attribute::Integer(-1))]);
        let parts = self.network.operator("Exp", &[&logs], &[]);
        let count = kinds.maps.len();
        let added = kinds.maps.iter().enumerate().map(|(kind, map)| {
            let only = Matrix::from_fn(1, count, |_, column| f32::from(u8::from(column == kind)));
            let part = self.products(&parts, &only);
            let output = self.map(map, scaled, None);
            let output = self.double(&output);
            self.both("Mul", &part, &output)
        });
        let added: Vec<String> = added.collect();
        let sum = added.into_iter().reduce(|sum, added| self.both("Add", &sum, &added));
        self.single(&sum.unwrap_or_default())
    }

    /// `Σ_j a_j · exp(−γ‖x − c_j‖²)`, summed in double precision, since the terms are much larger than their
    /// sum.
    fn kernel(&mut self, expansion: &KernelExpansion, scaled: &str) -> String {
        let KernelExpansion { centres, coefficients, gamma } = expansion;
        let scaled = self.double(scaled);
        let centres = self.transposed(centres);
        let squares = self.both("Mul", &centres, &centres);
        let axis = self.network.integers(&[0]);
        let squares =
            self.network.operator("ReduceSum", &[&squares, &axis], &[("keepdims", Attribute::Integer(1))]);
        let scaled_squares = self.squared_length(&scaled);
        let lengths = self.both("Add", &scaled_squares, &squares);
        let products = self.both("MatMul", &scaled, &centres);
        let products = self.times(&products, 2.0);
        // −‖x − c‖² = 2⟨x, c⟩ − (‖x‖² + ‖c‖²); rounding must not make it positive.
        let distance = self.both("Sub", &products, &lengths);
        let distance = self.with("Min", &distance, 0.0);
        let exponent = self.times(&distance, *gamma);
        let kernel = self.network.operator("Exp", &[&exponent], &[]);
        let coefficients =
            self.network.constant(&[coefficients.rows(), coefficients.columns()], coefficients.as_slice());
        let coefficients = self.double(&coefficients);
        let output = self.both("MatMul", &kernel, &coefficients);
        self.single(&output)
    }

    /// Scales a raw output to length 1, in single precision. A raw output of length 0 becomes the fallback.
    fn sphere(&mut self, fallback: &[f32], raw: &str, raw_norm: &str) -> String {
        let direction = self.divided(raw, raw_norm);
        let is_zero = self.with("Equal", raw_norm, 0.0);
        let fallback = self.row(fallback);
        let vector = self.network.operator("Where", &[&is_zero, &fallback, &direction], &[]);
        self.single(&vector)
    }

    /// Scales a raw output to the native length of its rank, in single precision.
    fn matched_norms(&mut self, lengths: &[f32], native: &[f32], raw: &str, raw_norm: &str) -> String {
        let length = self.quantile_map(lengths, native, raw_norm);
        let direction = self.divided(raw, raw_norm);
        let vector = self.both("Mul", &direction, &length);
        self.single(&vector)
    }

    /// Native length at the rank that a length has among raw lengths, as a column.
    fn quantile_map(&mut self, raw: &[f32], native: &[f32], length: &str) -> String {
        // Quantiles are in single precision, so a length is compared in single precision in order to find an
        // equal one.
        let single = self.single(length);
        let length = self.double(&single);
        let count = |writer: &mut Self, kind: &str| {
            let lengths = writer.network.constant(&[1, raw.len()], raw);
            let is_below = writer.both(kind, &lengths, &single);
            let ones = writer.cast(&is_below, TYPE_I64);
            writer.sum(&ones)
        };
        let (below, not_above) = (count(self, "Less"), count(self, "LessOrEqual"));
        let last = raw.len() as i64 - 1;
        let place = |writer: &mut Self, count: &str, shift: i64| {
            let shift = writer.network.integer(shift);
            let place = writer.both("Add", count, &shift);
            let (first, last) = (writer.network.integer(0), writer.network.integer(last));
            writer.network.operator("Clip", &[&place, &first, &last], &[])
        };
        let at = |writer: &mut Self, values: &[f32], place: &str| {
            let values = writer.network.constant(&[values.len()], values);
            let value =
                writer.network.operator("Gather", &[&values, place], &[("axis", Attribute::Integer(0))]);
            writer.double(&value)
        };
        let (left, right) = (place(self, &below, -1), place(self, &below, 0));
        let (left_raw, right_raw) = (at(self, raw, &left), at(self, raw, &right));
        let (left_native, right_native) = (at(self, native, &left), at(self, native, &right));
        let offset = self.both("Sub", &length, &left_raw);
        let span = self.both("Sub", &right_raw, &left_raw);
        let share = self.divided(&offset, &span);
        // Beyond either end both places are the same, and the difference between them is 0.
        let share = self.clip(&share, 0.0, 1.0);
        let rise = self.both("Sub", &right_native, &left_native);
        let rise = self.both("Mul", &share, &rise);
        let between = self.both("Add", &left_native, &rise);
        // A length that equals one quantile or several gets the middle of their native lengths.
        let last_equal = place(self, &not_above, -1);
        let last_native = at(self, native, &last_equal);
        let middle = self.both("Add", &right_native, &last_native);
        let middle = self.times(&middle, 0.5);
        let is_quantile = self.both("Less", &below, &not_above);
        self.network.operator("Where", &[&is_quantile, &middle, &between], &[])
    }

    /// `log σ²` of [`OutOfFold`], as a column.
    fn out_of_fold(
        &mut self,
        learned: &OutOfFold,
        scaled: &str,
        raw: &str,
        raw_norm: &str,
        vector: &str,
    ) -> Result<String> {
        let (values, distance) = self.nearest(learned, scaled);
        let centre = self.row(&learned.centre);
        let difference = self.both("Sub", raw, &centre);
        let centre_distance = self.norm(&difference);
        let mut features = vec![values];
        for length in [&distance, raw_norm, &centre_distance] {
            let length = self.with("Max", length, f32::MIN_POSITIVE);
            features.push(self.network.operator("Log", &[&length], &[]));
        }
        if let Some(head) = &learned.head {
            features.extend(self.head(head, vector));
        }
        let features: Vec<&str> = features.iter().map(String::as_str).collect();
        let features = self.network.operator("Concat", &features, &[("axis", Attribute::Integer(-1))]);
        let means = self.row(&learned.means);
        let centred = self.both("Sub", &features, &means);
        let weight = Matrix::new(learned.coefficients.len(), learned.coefficients.clone())?;
        let log = self.products(&centred, &weight);
        let log = self.plus(&log, learned.intercept);
        Ok(self.clip(&log, learned.log_minimum, learned.log_maximum))
    }

    /// Means over the nearest anchors: of their values, `[batch, values]`, and of their distances, as a
    /// column.
    fn nearest(&mut self, learned: &OutOfFold, scaled: &str) -> (String, String) {
        let (anchors, values) = (&learned.anchors, &learned.anchor_values);
        let neighbours = learned.neighbours.min(anchors.rows());
        let candidates = (neighbours + SPARE_CANDIDATES).min(anchors.rows());
        let top = |writer: &mut Self, of: &str, count: usize, largest: i64| -> [String; 2] {
            let count = writer.network.integers(&[count as i64]);
            let attributes = [("axis", Attribute::Integer(-1)), ("largest", Attribute::Integer(largest))];
            writer.network.operators("TopK", &[of, &count], &attributes)
        };
        // ⟨o, a⟩ − ‖a‖²/2 is larger for a nearer anchor. Rounding may swap anchors that are almost equally
        // near. So a few more are taken, and their distances decide.
        let bias: Vec<f32> =
            (0..anchors.rows()).map(|row| (-0.5 * norm(anchors.row(row)).powi(2)) as f32).collect();
        let scores = self.network.dense(scaled, anchors, &bias);
        let [_, rough] = top(self, &scores, candidates, 1);
        let rows = |writer: &mut Self, matrix: &Matrix, places: &str| {
            let matrix = writer.network.constant(&[matrix.rows(), matrix.columns()], matrix.as_slice());
            let rows =
                writer.network.operator("Gather", &[&matrix, places], &[("axis", Attribute::Integer(0))]);
            writer.double(&rows)
        };
        let near = rows(self, anchors, &rough);
        let axis = self.network.integers(&[1]);
        let scaled = self.double(scaled);
        let expanded = self.both("Unsqueeze", &scaled, &axis);
        let difference = self.both("Sub", &near, &expanded);
        let distances = self.norm(&difference);
        let last = self.network.integers(&[-1]);
        let distances = self.both("Squeeze", &distances, &last);
        let [distances, places] = top(self, &distances, neighbours, 0);
        let mean = |writer: &mut Self, of: &str, axis: i64, keep: i64| {
            let attributes =
                [("axes", Attribute::Integers(vec![axis])), ("keepdims", Attribute::Integer(keep))];
            writer.network.operator("ReduceMean", &[of], &attributes)
        };
        let distance = mean(self, &distances, -1, 1);
        let anchors =
            self.network.operator("GatherElements", &[&rough, &places], &[("axis", Attribute::Integer(-1))]);
        let values = rows(self, values, &anchors);
        (mean(self, &values, 1, 0), distance)
    }

    /// Entropy of a head, and one minus its largest probability, as columns.
    fn head(&mut self, head: &Head, vector: &str) -> [String; 2] {
        let vector = self.double(vector);
        let logits = match head.kind().scale() {
            None => {
                let products = self.products(&vector, head.weight());
                let bias = self.row(head.bias());
                self.both("Add", &products, &bias)
            }
            Some(scale) => {
                let products = self.products(&vector, &cosine_weight(head, scale));
                let length = self.norm(&vector);
                self.divided(&products, &length)
            }
        };
        let axis = [("axis", Attribute::Integer(-1))];
        let logs = self.network.operator("LogSoftmax", &[&logits], &axis);
        let chances = self.network.operator("Exp", &[&logs], &[]);
        let terms = self.both("Mul", &chances, &logs);
        let sum = self.sum(&terms);
        let entropy = self.times(&sum, -1.0);
        let attributes = [("axes", Attribute::Integers(vec![-1])), ("keepdims", Attribute::Integer(1))];
        let largest = self.network.operator("ReduceMax", &[&chances], &attributes);
        let doubt = self.times(&largest, -1.0);
        [entropy, self.plus(&doubt, 1.0)]
    }
}
