from protograph.serve.metrics import Metrics


def test_metrics_are_the_text_of_prometheus() -> None:
    metrics = Metrics()
    for seconds in (0.001, 0.01, 0.02, 60.0):
        metrics.answered("POST", "/api/predict", 200, seconds)
    metrics.answered("GET", "other", 404, 0.1)
    metrics.batches.add(3)
    metrics.batches.add(32)
    metrics.gauge("classes", "Classes.", lambda: 7)
    lines = metrics.text().splitlines()
    assert 'protograph_requests_total{method="POST",route="/api/predict",status="200"} 4' in lines
    buckets = [line for line in lines if line.startswith('protograph_request_seconds_bucket{route="/api/predict"')]
    counts = [int(line.split()[-1]) for line in buckets]
    assert counts == sorted(counts)
    assert buckets[0].endswith('le="0.005"} 1')
    assert buckets[1].endswith('le="0.01"} 2')
    assert buckets[-1].endswith('le="+Inf"} 4')
    assert 'protograph_request_seconds_count{route="/api/predict"} 4' in lines
    assert 'protograph_batch_images_bucket{le="4"} 1' in lines
    assert "protograph_images_total 35" in lines
    assert "protograph_classes 7" in lines
    for line in lines:
        assert line.startswith(("# HELP protograph_", "# TYPE protograph_", "protograph_"))
