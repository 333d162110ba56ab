//! Points of a collection, read by id, by filter or by an order, page by page.

use rehang_core::Result;
use rehang_store::ItemKey;
use serde_json::{Value, json};

use crate::client::{Client, PAGE};
use crate::ids::id_of;
use crate::payload::{REVISION, kind_of};
use crate::points::Point;

/// Points of one page of a scroll with vectors.
const PAGE_WITH_VECTORS: usize = 256;
/// Points of a page of which only the keys are wanted.
const PAGE_OF_KEYS: usize = 10_000;

/// Parts of a point that a read brings along.
#[derive(Debug, Clone)]
pub(crate) struct With {
    /// `true`, `false` or a list of fields.
    pub(crate) payload: Value,
    /// Names of vectors.
    pub(crate) vectors: Vec<String>,
}

/// Brings ids alone: the server takes null for the whole payload.
impl Default for With {
    fn default() -> Self {
        Self { payload: Value::Bool(false), vectors: Vec::new() }
    }
}

impl Client {
    /// Reads one page of points by id, and the id from which the next page starts.
    fn page(&self, collection: &str, body: &Value) -> Result<(Vec<Point>, Value)> {
        let mut result = self.ask("POST", &format!("/collections/{collection}/points/scroll"), body)?;
        let points = Point::list(result["points"].take(), &self.name())?;
        Ok((points, result["next_page_offset"].take()))
    }

    /// Reads the first page of points that pass a filter, by id. Returns it with whether it is the last one,
    /// and how many points were passed over that cannot be items.
    pub(crate) fn first_page(&self, collection: &str, filter: &Value) -> Result<(Vec<Point>, bool, u64)> {
        let (mut offset, mut foreign_points) = (Value::Null, 0);
        loop {
            let body = json!({"filter": filter, "offset": offset, "limit": self.page_max.min(PAGE), "with_payload": [REVISION]});
            let mut result = self.ask("POST", &format!("/collections/{collection}/points/scroll"), &body)?;
            let all = result["points"].as_array().map_or(0, Vec::len);
            let points = Point::list(result["points"].take(), &self.name())?;
            foreign_points += all.saturating_sub(points.len()) as u64;
            offset = result["next_page_offset"].take();
            if !points.is_empty() || offset.is_null() {
                return Ok((points, offset.is_null(), foreign_points));
            }
        }
    }

    /// Reads points that pass a filter, by id, after a key, at most `limit` of them. `visit` is given page by
    /// page and says whether to go on.
    pub(crate) fn each_page(
        &self,
        collection: &str,
        filter: &Value,
        after: Option<ItemKey>,
        limit: usize,
        with: &With,
        visit: &mut dyn FnMut(Vec<Point>) -> Result<bool>,
    ) -> Result<()> {
        let mut offset = match after {
            Some(key) if key.bits() == u128::MAX => return Ok(()),
            Some(key) => id_of(ItemKey::new(key.bits() + 1)),
            None => Value::Null,
        };
        let size = match (with.vectors.is_empty(), &with.payload) {
            (false, _) => PAGE_WITH_VECTORS,
            (true, Value::Bool(false)) => PAGE_OF_KEYS,
            (true, _) => PAGE,
        };
        let size = size.min(self.page_max);
        let mut wanted = limit;
        while wanted > 0 {
            let body = json!({
                "filter": filter, "offset": offset, "limit": wanted.min(size), "with_payload": with.payload,
                "with_vector": with.vectors,
            });
            let (points, next) = self.page(collection, &body)?;
            wanted -= points.len().min(wanted);
            // A page of points that cannot be items hides none behind it.
            if !points.is_empty() && !visit(points)? || next.is_null() {
                break;
            }
            offset = next;
        }
        Ok(())
    }

    /// Reads points that pass a filter, as [`Client::each_page`] does, into one list.
    pub(crate) fn scroll(
        &self,
        collection: &str,
        filter: &Value,
        after: Option<ItemKey>,
        limit: usize,
        with: &With,
    ) -> Result<Vec<Point>> {
        let mut all = Vec::new();
        self.each_page(collection, filter, after, limit, with, &mut |points| {
            all.extend(points);
            Ok(true)
        })?;
        Ok(all)
    }

    /// Finds a point with the largest number in a payload field. Unlike [`Client::scroll_down`] it compares
    /// no numbers here, so they may have 64 bits.
    pub(crate) fn largest(&self, collection: &str, by: &str, with: &With) -> Result<Option<Point>> {
        let body =
            json!({"limit": 1, "with_payload": with.payload, "order_by": {"key": by, "direction": "desc"}});
        Ok(self.page_by(collection, by, &body)?.pop())
    }

    /// Reads a page in the order of a payload number. Makes its index again where a part of
    /// the collection has none.
    fn page_by(&self, collection: &str, by: &str, body: &Value) -> Result<Vec<Point>> {
        let page = match self.page(collection, body) {
            Err(error) if error.to_string().contains("No range index") => {
                self.index(collection, by, kind_of(by))?;
                self.page(collection, body)
            }
            page => page,
        };
        Ok(page?.0)
    }

    /// Reads points in the order of a payload number: the largest first, equal ones by key.
    pub(crate) fn scroll_down(
        &self,
        collection: &str,
        filter: &Value,
        by: &str,
        limit: usize,
        with: &With,
    ) -> Result<Vec<Point>> {
        let mut all: Vec<Point> = Vec::new();
        let mut below: Option<f64> = None;
        while all.len() < limit {
            let size = (limit - all.len()).min(self.page_max).min(PAGE);
            let is_below = below.map(|below| json!({"key": by, "range": {"lt": below}}));
            let conditions: Vec<Value> = [Some(filter.clone()), is_below].into_iter().flatten().collect();
            let body = json!({
                "filter": {"must": conditions}, "limit": size, "with_payload": with.payload,
                "with_vector": with.vectors, "order_by": {"key": by, "direction": "desc"},
            });
            let mut points = self.page_by(collection, by, &body)?;
            points.sort_by(|a, b| b.order_value.total_cmp(&a.order_value).then(a.key.cmp(&b.key)));
            points.dedup_by_key(|point| point.key);
            let Some(last) = points.last().map(|point| point.order_value).filter(|_| points.len() >= size)
            else {
                all.extend(points);
                break;
            };
            // Among points that are equal at the page's border, the server gives any: they
            // are read again, by key.
            points.retain(|point| point.order_value > last);
            all.extend(points);
            let equal = json!({"must": [filter, {"key": by, "range": {"gte": last, "lte": last}}]});
            all.extend(self.scroll(collection, &equal, None, limit - all.len(), with)?);
            below = Some(last);
        }
        Ok(all)
    }

    /// Reads points by key; keys without a point are left out.
    pub(crate) fn retrieve(
        &self,
        collection: &str,
        keys: impl Iterator<Item = ItemKey>,
        with: &With,
    ) -> Result<Vec<Point>> {
        let ids: Vec<Value> = keys.map(id_of).collect();
        let mut points = Vec::new();
        for ids in ids.chunks(PAGE) {
            let body = json!({"ids": ids, "with_payload": with.payload, "with_vector": with.vectors});
            let answer = self.ask("POST", &format!("/collections/{collection}/points"), &body)?;
            points.extend(Point::list(answer, &self.name())?);
        }
        Ok(points)
    }
}
